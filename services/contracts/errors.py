"""Every error Smelt raises on purpose, in one tree.

    SmeltError
    ├── InvalidRequestError            the caller's data is wrong: name, dtype, shape, bytes, option
    │   ├── InvalidModelError          an ONNX file or PyTorch factory cannot become a master
    │   │   └── UnsupportedGraphError  a sound ONNX graph holds something we do not translate
    │   └── InvalidRecipeError         a recipe or fleet description has a wrong value
    ├── UnauthenticatedError           the caller gave no token, or one that is not valid
    ├── NotAllowedError                the caller is known, and may not do this
    ├── NotFoundError                  no such model, version, engine, blob or command target
    ├── NotReadyError                  it exists, but cannot serve now: starting, draining
    │   └── ConnectionLostError    the connection to a replica was lost
    ├── OverloadedError                a queue bound is reached; the caller may retry
    ├── ExternalServerError            an external server cannot be asked, or fails
    ├── AnswerTooLargeError            the answer exists, and is larger than a message may be
    ├── DeadlineExceededError          the caller's deadline passed before an answer existed
    ├── UnsupportedFeatureError        a feature that is off or not offered here
    ├── BuildError                     a builder could not make an engine; has its reason
    │   └── BuildUnavailableError      this machine cannot build that kind or generation at all
    ├── ProofError                     an engine was built and is not equal to its reference
    ├── EngineError                    an engine failed while loading or running
    │   ├── InputRefusedError          the engine's library refuses the values of a request
    │   ├── CheckUnfinishedError       the check of an engine was ended before it had a verdict
    │   └── EngineIncompatibleError    the engine's bytes are for another device, driver or library
    └── StoreError                     the artifact store failed or gave wrong bytes
        ├── SealedError                samples have another key than the one that is given
        ├── AlreadyPublishedError      the create-only object exists already
        ├── CorruptBlobError           bytes do not have the digest that names them
        └── UnsafeStoreError           the store failed its start-up self-test

Messages say what failed, where, what was found and wanted, and the command or
change that helps. No gRPC or HTTP term belongs here: the gateway maps
classes to status codes in one table (`services/gateway/api/status_codes.py`).
"""


class SmeltError(Exception):
    """Base of every error raised on purpose."""


class InvalidRequestError(SmeltError):
    """The caller's data is wrong; sending the same again cannot help."""


class InvalidModelError(InvalidRequestError):
    """An ONNX file or a PyTorch factory cannot become a master."""


class UnsupportedGraphError(InvalidModelError):
    """A valid ONNX graph holds an op, attribute or type that Smelt does not translate.

    Attributes:
        node: name of the node, "" when the whole graph is meant.
        op_type: ONNX op type, with its domain when it is not ai.onnx.
        opset: version of the op's domain that the model imports, 0 when unknown.
        reason: one sentence, without the node's name.
    """

    def __init__(self, reason: str, *, op_type: str = "", node: str = "", opset: int = 0) -> None:
        """Keep the parts; a copy from another process is made of the same ones."""
        super().__init__(reason)
        self.node = node
        self.op_type = op_type
        self.opset = opset
        self.reason = reason

    def __str__(self) -> str:
        """The message, composed from the parts that are known."""
        where = f"{self.op_type}-{self.opset}" if self.op_type else "graph"
        at = f" at node '{self.node}'" if self.node else ""
        return f"{where}{at}: {self.reason}"


class InvalidRecipeError(InvalidRequestError):
    """A recipe or fleet description holds a wrong value."""


class UnauthenticatedError(SmeltError):
    """The caller gave no token, or one that is not valid."""


class NotAllowedError(SmeltError):
    """The caller is known, and may not do this."""


class NotFoundError(SmeltError):
    """No such model, version, engine or blob."""


class NotReadyError(SmeltError):
    """The thing exists but cannot serve now."""


class ConnectionLostError(NotReadyError):
    """The connection to a replica could not be made, or was lost before the answer came.

    Attributes:
        may_have_run: False when the replica never had the whole request, so that sending it
            elsewhere is always safe; True when it may have run, so that only a request which
            changes nothing may be sent again.
    """

    def __init__(self, message: str, *, may_have_run: bool = True) -> None:
        """Keep what a retry has to know beside the message."""
        super().__init__(message)
        self.may_have_run = may_have_run


class OverloadedError(SmeltError):
    """A queue bound is reached.

    Attributes:
        retry_after_s: seconds after which a retry is likely to be admitted.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.05) -> None:
        """Keep the retry hint beside the message."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ExternalServerError(SmeltError):
    """An external server cannot be asked, fails, or answers what is not its protocol."""


class AnswerTooLargeError(SmeltError):
    """The answer exists, and is larger than a message may be; asking for less helps."""


class DeadlineExceededError(SmeltError):
    """The caller's deadline passed before an answer existed."""


class UnsupportedFeatureError(SmeltError):
    """A feature that is switched off or not offered by this process."""


class BuildError(SmeltError):
    """A builder could not make an engine.

    Attributes:
        log_tail: the builder's last log lines, newest last; kept in the build record.
    """

    def __init__(self, message: str, *, log_tail: tuple[str, ...] = ()) -> None:
        """Keep the builder's own output beside the message."""
        super().__init__(message)
        self.log_tail = log_tail


class BuildUnavailableError(BuildError):
    """This machine cannot build that kind for that generation."""


class ProofError(SmeltError):
    """An engine was built and is not equal to its reference."""


class EngineError(SmeltError):
    """An engine failed while loading or running."""


class InputRefusedError(EngineError):
    """The engine's library refuses the values of a request, as an index outside of its table.

    It may be the engine's fault for all that is known, and counts as its failure.
    """


class CheckUnfinishedError(EngineError):
    """The check of an engine was ended from outside, or by its limit: it says nothing of it."""


class EngineIncompatibleError(EngineError):
    """The engine was made for another device, driver or library."""


class StoreError(SmeltError):
    """The artifact store failed."""


class SealedError(StoreError):
    """Samples are sealed with another key than the one that is given, or none is given."""


class AlreadyPublishedError(StoreError):
    """A create-only object exists already; nothing was overwritten."""


class CorruptBlobError(StoreError):
    """Stored bytes do not have the digest that names them."""


class UnsafeStoreError(StoreError):
    """The store failed the self-test of its conditional create at start-up."""
