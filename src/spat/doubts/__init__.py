"""Is this robustness real? One file a doubt; each is asked of a model and its attack."""

from spat.doubts._evaluation import flags, from_outcomes
from spat.doubts._run import audit

__all__ = ["audit", "flags", "from_outcomes"]
