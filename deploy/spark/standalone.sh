#!/bin/sh
# A Spark master and one worker out of the installed pyspark, in the foreground until Ctrl-C. To try `peerd analyze
# --master spark://HOST:PORT`, or for one large machine; who has a Spark cluster needs none of this.
#
#   HOST=127.0.0.1 PORT=7077 CORES=2 MEMORY=2g deploy/spark/standalone.sh
#
# Spark asks nobody who he is unless it is told to (spark.authenticate), so this listens on the loopback interface only.
set -eu

host=${HOST:-127.0.0.1}
port=${PORT:-7077}
home=$("${PYTHON:-python3}" -c 'import pyspark; print(pyspark.__path__[0])')
work=$(mktemp -d)
export SPARK_HOME="$home" SPARK_LOCAL_IP="$host" SPARK_NO_DAEMONIZE=1

"$home/bin/spark-class" org.apache.spark.deploy.master.Master \
    --host "$host" --port "$port" --webui-port 0 &
master=$!
"$home/bin/spark-class" org.apache.spark.deploy.worker.Worker \
    --host "$host" --webui-port 0 --cores "${CORES:-2}" --memory "${MEMORY:-2g}" --work-dir "$work" "spark://$host:$port" &
worker=$!

finish() {
    trap - INT TERM EXIT
    kill "$worker" "$master" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish INT TERM EXIT
wait "$master" # who ends the master ends the worker
