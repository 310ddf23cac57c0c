"""State without a cluster: the agent in the driver, the store, the manifest, and the way back.

Kept empty on purpose: reading a manifest must never import pyspark.
"""
