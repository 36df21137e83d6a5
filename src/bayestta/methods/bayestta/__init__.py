"""BayesTTA in the order of the paper: sketch, test, statistics, discriminants, refinement."""

from bayestta.methods.bayestta.method import BayesTTA as BayesTTA
