"""Reading a partitioned parquet export, on this machine or in object storage, without Trackio."""
