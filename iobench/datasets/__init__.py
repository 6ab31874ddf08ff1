"""What samples are made from: the dataset contract, locating files, source readers."""

from iobench.lazy_face import lazy_face

__getattr__, __dir__ = lazy_face(__name__, __file__)
