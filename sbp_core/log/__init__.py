"""The durable log of one server: opaque entries, appended in group commits, checked at recovery.

From the bottom up, as the import contract has it: the disk; entries and segments; the states that
entries add up to; rows, index files and the boundaries of the log; scans and writers of segments;
finding batches, their bodies, and recovery; the log itself; and the cleaner.
"""
