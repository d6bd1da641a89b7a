"""What an access file can allow."""

from enum import StrEnum


class Verb(StrEnum):
    """What can be allowed. Any verb on a model also allows its metadata."""

    INFER = "infer"
    LOAD = "load"
    ADMIN = "admin"
