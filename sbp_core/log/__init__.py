"""The durable log of one server: opaque entries, appended in group commits, checked at recovery."""
