"""peerd's command as a program for `spark-submit`, which says which master and how much memory:

spark-submit --master yarn --driver-memory 4g deploy/spark/submit.py analyze hdfs://namenode/logs --out hdfs://namenode/tables
"""

import sys

from peerd.cli.main import main

sys.exit(main())
