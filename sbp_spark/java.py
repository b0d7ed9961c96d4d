"""A Java that Spark can run on: `python -m sbp_spark.java` prints its home, and nothing else."""

from sbp_spark.operations.java_homes import default_cache, ensure_java, find_java, main, use_java

__all__ = ["default_cache", "ensure_java", "find_java", "main", "use_java"]

if __name__ == "__main__":
    raise SystemExit(main())
