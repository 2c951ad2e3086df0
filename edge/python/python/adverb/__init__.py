"""RDMA verbs everywhere: sessions (`adverb.session`) and, in outline, verbs (`adverb.verbs`)."""

from adverb import _errors as _errors  # The exceptions' classes are there before anything raises one.
from adverb import session, verbs
from adverb._adverb import __version__
from adverb._errors import Error, PeerGone, Timeout

__all__ = ["Error", "PeerGone", "Timeout", "__version__", "session", "verbs"]
