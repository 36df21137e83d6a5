"""How fast refinement goes on, after it went wrong or what it was tuned for was no more."""

from __future__ import annotations

import math

from bayestta.state import StatefulPart

SLOWER, RETURNS = 0.03, 3  # the rate after each return; returns at which refinement rests
LEAVES = 4  # moves of the stream that slow refinement down as much as one return
FADE, GONE = 64.0, 0.1  # images in which half of the weights fade away where answers crowd, and
# the part of them that is then given up
PARDON = 2048  # images after which a move, or as much of a return, is forgotten


class Pace(StatefulPart):
    """Counts of returns to the source and of moves of the stream, as far as not yet forgotten.

    >>> pace = Pace()
    >>> pace.move()
    >>> round(pace.factor, 2)
    0.42
    >>> pace.go_on(2048)
    >>> pace.factor
    1.0
    >>> pace.returns = 1
    >>> pace.go_on(2048)
    >>> pace.returns, pace.moves
    (0, 3)
    """

    def __init__(self) -> None:
        self.add_state("returns", 0, merge="max", least=0)
        self.add_state("moves", 0, merge="max", least=0)
        self.add_state("stayed", 0, least=0)
        self.add_state("kept", 1.0, least=0, most=1)

    returns: int
    moves: int  # a stream that moves away once may do so again
    stayed: int  # images since the last one
    kept: float  # part of the tuned weights, since answers began to crowd into one class

    @property
    def factor(self) -> float:
        """Of the rate."""
        return math.pow(SLOWER, self.returns + self.moves / LEAVES)

    @property
    def over(self) -> bool:
        return self.returns >= RETURNS

    def move(self) -> None:
        self.moves, self.stayed = self.moves + 1, 0

    def go_on(self, n: int) -> None:
        """Count n images."""
        self.stayed += n
        if self.stayed >= PARDON:
            self.stayed = 0
            if self.returns and not self.moves:
                self.returns, self.moves = self.returns - 1, LEAVES
            self.moves = max(0, self.moves - 1)

    def fade(self, n: int) -> float:
        """The part of the way to the source, for n images: a crowd may pass."""
        keep = math.pow(0.5, n / FADE)
        self.kept *= keep
        return 1.0 if self.kept < GONE else 1 - keep
