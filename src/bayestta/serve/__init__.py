"""Adapters behind HTTP: many of them on one model, each with a durable state of its own."""
