"""Drive an adapter over a stream, and sum up what it answered."""
