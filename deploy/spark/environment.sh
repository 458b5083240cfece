#!/bin/sh
# What workers of Spark need for `peerd lab sweep` and `peerd sim swarm`, where nothing of it is installed: peerd's
# dependencies and pyarrow, in one archive, which Spark unpacks on each worker.
#
#   deploy/spark/environment.sh environment.tar.gz
#   peerd lab sweep EXPERIMENT --master spark://HOST:PORT --conf spark.archives=environment.tar.gz#environment \
#       --conf spark.executorEnv.PYTHONPATH=environment
#
# It has compiled code: run this where processor, system and Python's version are those of the workers.
set -eu

out=${1:?where to write the archive, such as environment.tar.gz}
here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --target "$folder" "$here[filter]" pyarrow
tar -czf "$out" -C "$folder" .
