"""A test must mean the same in every shell: nothing that steers Spark or Godwit comes from outside."""

import os
import sys

for name in list(os.environ):
    if name.startswith(("GODWIT_", "SPARK_", "PYSPARK_")) and name != "GODWIT_CACHE":
        del os.environ[name]

# Spark's Python workers would otherwise be the first python3 on the PATH, and Spark itself would listen
# on whatever address the machine's name resolves to.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
