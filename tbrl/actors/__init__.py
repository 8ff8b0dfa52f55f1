"""Thin Ray actors: each owns a life cycle, deadlines and metrics, and calls a plain class."""
