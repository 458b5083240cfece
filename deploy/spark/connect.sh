#!/bin/sh
# A server of Spark Connect out of the installed pyspark, in the foreground until Ctrl-C: for `peerd analyze --master
# sc://HOST:PORT`, from machines that have no Java. MASTER is where the work is done.
#
#   HOST=127.0.0.1 PORT=15002 MASTER=local[2] MEMORY=2g deploy/spark/connect.sh
#
# Whoever reaches it may run anything as its user, unless Spark is told otherwise (spark.connect.authenticate.token), so
# this listens on the loopback interface only.
set -eu

host=${HOST:-127.0.0.1}
home=$("${PYTHON:-python3}" -c 'import pyspark; print(pyspark.__path__[0])')
export SPARK_HOME="$home" SPARK_LOCAL_IP="$host" PYSPARK_PYTHON="${PYSPARK_PYTHON:-${PYTHON:-python3}}"

exec "$home/bin/spark-submit" --master "${MASTER:-local[2]}" --driver-memory "${MEMORY:-2g}" \
    --conf spark.ui.enabled=false --conf "spark.connect.grpc.binding.address=$host" \
    --conf "spark.connect.grpc.binding.port=${PORT:-15002}" \
    --class org.apache.spark.sql.connect.service.SparkConnectServer spark-internal
