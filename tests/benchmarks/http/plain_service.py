"""A text embedder as it is commonly written: FastAPI around sentence-transformers.

    HF_HUB_OFFLINE=1 python -m tests.benchmarks.http.plain_service PORT

Its answers are those of `/v1/embeddings`.
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

from tests.minilm_folder import MODEL_DIR

app = FastAPI()
model = SentenceTransformer(str(MODEL_DIR))


class Question(BaseModel):
    """What OpenAI's clients send."""

    model: str
    input: list[str]


# Not async: FastAPI runs it on a thread, so that the event loop goes on.
@app.post("/v1/embeddings")
def embed(question: Question) -> dict[str, object]:
    """The vectors of texts."""
    vectors = model.encode(question.input)
    data = [
        {"object": "embedding", "index": index, "embedding": vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": question.model}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
