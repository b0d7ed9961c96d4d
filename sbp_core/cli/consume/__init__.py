"""`sbp consume`: records of streams as text, JSON, CSV, Parquet or Arrow."""
