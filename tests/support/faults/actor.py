"""The master as an injury sees it: the acts that it may ask for.

Injury.inflict(actor) -> actor.shoot, actor.follow, ... -> orders to the referee
"""

import random
import signal

import synk


class Actor:
    """A master under test, as injuries see it.

    Parameters
    ----------
    seed : int
        Of all that it decides.
    tell : callable
        Takes keywords and sends them to the referee.
    private : bool
        Whether shared memory is ours alone.
    """

    def __init__(self, seed, tell, private):
        self.random = random.Random(seed)
        self.tell, self.private = tell, private
        self.n_ranks = 0
        self.pids = ()
        self.exposed = False  # whether synk is at work, not the script

    def is_open(self):
        """Say whether a run is open."""
        try:
            return bool(synk.pids())
        except synk.SynkStateError:
            return False

    def draw(self, low, high):
        """Return a random integer, both ends included."""
        return self.random.randint(low, high)

    def pick_ranks(self, several=False, also_rank_0=False):
        """Return random ranks, in order."""
        ranks = range(0 if also_rank_0 else 1, self.n_ranks)
        return sorted(self.random.sample(ranks, self.draw(1, len(ranks)) if several else 1))

    def shoot(self, pids, signals, apart, moment):
        """Ask the referee to send signals soon."""
        first = self.random.uniform(0, moment)
        shots = [
            (first + number * apart, pid, int(one)) for number, one in enumerate(signals) for pid in pids
        ]
        self.tell(shots=shots)

    def follow(self, pid):
        """Ask the referee to kill a process a moment after the armed act has happened."""
        self.tell(follow=[self.random.uniform(0.05, 0.3), pid, int(signal.SIGKILL)])

    def interrupt(self, number, frame):
        """Handle SIGINT as Python does, but only while synk is at work."""
        if self.exposed:
            raise KeyboardInterrupt
