"""MLServer with the no-op models, in an environment that has MLServer and nothing of Smelt.

    INTERPRETER -m tests.benchmarks.dataplane.peer_mlserver ORDER

ORDER is the JSON object that `peers` writes. Runs until its input ends. Inference is in the
server's own process: a no-op gains nothing from MLServer's workers and would pay for the way there.
"""

import asyncio
import json
import sys
from typing import Any

import uvloop
from mlserver import MLModel, MLServer, ModelSettings, Settings  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceResponse  # type: ignore[import-not-found]

NUM_ANSWERED = 10


class Noop(MLModel):  # type: ignore[misc] # MLServer is not there to be checked
    """Answers the first values of each row."""

    async def predict(self, payload: Any) -> Any:
        """By MLServer's own codec, as a runtime for arrays does."""
        x_BN = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("y", x_BN[:, :NUM_ANSWERED])
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=[output])


async def serve(order: dict[str, Any]) -> None:
    """Serve until the input ends."""
    ports = {f"{name}_port": port for name, port in order["ports"].items()}
    settings = Settings(
        debug=False, host="127.0.0.1", parallel_workers=0, metrics_dir=order["folder"], **ports
    )
    server = MLServer(settings)
    serving = asyncio.create_task(
        server.start([ModelSettings(name=name, implementation=Noop) for name in order["models"]])
    )
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((serving, reading), return_when=asyncio.FIRST_COMPLETED)
    await server.stop()
    await serving


if __name__ == "__main__":
    uvloop.run(serve(json.loads(sys.argv[1])))
