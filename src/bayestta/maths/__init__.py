"""Pure mathematics on tensors: statistics, covariances, a test and discriminants."""
