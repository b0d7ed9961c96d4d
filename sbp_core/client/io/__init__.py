"""Connections and the runners of programs, blocking and asynchronous."""
