"""The table of rollouts: immutable parquet segments, and the DuckDB that answers questions about them."""
