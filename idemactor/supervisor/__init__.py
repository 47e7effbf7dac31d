"""Several processes for one server: one that starts, watches and stops the others, and they, which do the work."""

from idemactor.supervisor.parent import supervise

__all__ = ["supervise"]
