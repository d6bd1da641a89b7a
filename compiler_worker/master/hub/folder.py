"""A folder as Hugging Face's hub lays it out: its model, and how text becomes its inputs."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compiler_worker.master.source import MasterSource, OnnxFile, TransformersFolder
from services.contracts.errors import InvalidModelError
from services.contracts.model.label_scores import LabelScores
from services.contracts.model.pooling_choice import Pooling
from services.contracts.model.text_recipe import TextRecipe

TOKENIZER_FILE = "tokenizer.json"
MODEL_FILES = ("onnx/model.onnx", "model.onnx")
WEIGHTS = "model*.safetensors"
_OTHERWISE = "to say otherwise: --tokenizer, --pooling, --normalize, or a recipe with text: {...}"
# They write text token by token, which one call of a model is not.
_WRITERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForSpeechSeq2Seq")
# Of an architecture's name: what its class adds to an encoder. The first are exported with it; of
# the others hidden states are the whole of what embedders take.
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification")
_HEADLESS = ("ForMaskedLM", "ForPreTraining", "ForMaskedImageModeling")
# What the library names classes that have no names, two where it says nothing.
_UNNAMED = {"0": "LABEL_0", "1": "LABEL_1"}
# Of libraries that know no bound.
_NO_BOUND = 2**20
_POOLINGS = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
}
# Which take `tokenizer.json` as it is.
_PLAIN_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
# By `problem_type`, as transformers' pipelines have them.
_SCORES = {"multi_label_classification": LabelScores.SIGMOID, "regression": LabelScores.NONE}
# What newer releases of sentence-transformers write in one word.
_POOLING_WORDS = {"mean": Pooling.MEAN, "cls": Pooling.CLS, "lasttoken": Pooling.LAST}


@dataclass(frozen=True, kw_only=True)
class HubFolder:
    """What a folder has of a model.

    Attributes:
        folder: where it is.
        model: its ONNX file; None of one that is to be exported.
        text: None where there is no `tokenizer.json`.
        labels: of a classifier's classes.
        label_scores: whether a text has one of them.
        words: what was taken, and how to say otherwise, a line each.
        origin: where it was brought from; "" of a folder of the owner's.
    """

    folder: Path
    model: Path | None
    text: TextRecipe | None = None
    labels: tuple[str, ...] = ()
    label_scores: LabelScores = LabelScores.SOFTMAX
    words: tuple[str, ...] = ()
    origin: str = ""

    @property
    def source(self) -> MasterSource:
        """What its master is made of."""
        return OnnxFile(path=self.model) if self.model else TransformersFolder(folder=self.folder)


def read_hub_folder(folder: Path, origin: str = "", file: str = "") -> HubFolder | None:
    """Read a folder that has a `config.json` and a model; None where it is none such.

    Args:
        folder: an ONNX file in it is taken before safetensors.
        origin: where it was brought from.
        file: its ONNX file; "" for the one that `MODEL_FILES` finds.

    Raises:
        InvalidModelError: a file in it is broken, something follows or replaces pooling that is
            not known here, or the model writes text.
    """
    try:
        return _found(folder, origin, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidModelError(
            f"{origin or folder}: its *.json files are not as transformers and "
            f"sentence-transformers write them: {error!r}; download them again, or add the ONNX "
            "file alone"
        ) from error


def _found(folder: Path, origin: str, file: str) -> HubFolder | None:
    names = (file,) if file else MODEL_FILES
    model = next((folder / name for name in names if (folder / name).is_file()), None)
    has_model = bool(model or (not file and any(folder.glob(WEIGHTS))))
    if not has_model or not (folder / "config.json").is_file():
        return None
    if not file:
        refuse_writer(folder, origin)
    if model is None:
        _refuse_other_heads(folder, origin)
    config = read_json(folder / "config.json")
    labels = _labels(config)
    text = _text(folder, config) if (folder / TOKENIZER_FILE).is_file() else None
    found = HubFolder(
        folder=folder,
        model=model,
        text=text,
        labels=labels if len(labels) > 1 or _is_regressor(config) else (),
        label_scores=_SCORES.get(str(config.get("problem_type")), LabelScores.SOFTMAX),
        origin=origin,
    )
    return replace(found, words=tuple(_words(found)))


def refuse_writer(folder: Path, origin: str = "") -> None:
    """Raise InvalidModelError for a model that writes text, unless it is pooled as an embedder."""
    names = read_json(folder / "config.json").get("architectures") or [""]
    if str(names[0]).endswith(_WRITERS) and not _is_embedder(folder):
        raise InvalidModelError(
            f"{origin or folder}: {names[0]} found, which writes text token by token; wanted is a "
            "model that answers in one call: an embedder, a reranker, a classifier of texts or "
            "pictures. Smelt is no server for the others: vLLM and llama.cpp are"
        )


def _refuse_other_heads(folder: Path, origin: str) -> None:
    """Raise InvalidModelError for a head that an export would leave out without a word."""
    names = read_json(folder / "config.json").get("architectures") or [""]
    head = re.search("For[A-Z].*", str(names[0]))
    if head and head[0] not in (*CLASSIFIERS, *_HEADLESS) and not _is_embedder(folder):
        raise InvalidModelError(
            f"{origin or folder}: {names[0]} found; exported are encoders and "
            f"{', '.join(CLASSIFIERS)}: export it yourself, with the outputs that you want, and "
            "add the file: torch.onnx.export(..., dynamo=True)"
        )


def _is_embedder(folder: Path) -> bool:
    return (folder / "modules.json").is_file()


def _words(found: HubFolder) -> list[str]:
    folder = found.folder
    model = found.model
    took = [str(model.relative_to(folder)) if model else f"{WEIGHTS}, exported by transformers"]
    if text := found.text:
        took += [text.tokenizer, f"at most {text.max_tokens} tokens" if text.max_tokens else ""]
        took += ["pairs of texts (text.pairs)" if text.pairs else ""]
        took += [f"pooling {text.pooling}" if text.pooling else "outputs as they are"]
        took += ["length 1" if text.normalize else ""]
    if found.labels:
        took.append(f"labels {', '.join(found.labels[:5])} (scores: {found.label_scores})")
    words = [f"{found.origin or folder}: took {'; '.join(each for each in took if each)}"]
    is_file = model is not None and not found.origin
    alone = f"; for the file alone: smelt models add NAME {model}" if is_file else ""
    if found.text:
        words.append(f"{_OTHERWISE}{alone}")
    prompts = read_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    if any(prompts.values()):
        words.append(f"clients put its prompts before texts themselves: {json.dumps(prompts)}")
    poolings = map(read_json, folder.glob("*_Pooling/config.json"))
    if any(each.get("include_prompt") is False for each in poolings):
        words.append(
            "its pooling leaves the tokens of a prompt out (include_prompt: false), and here they "
            "are pooled: of a text behind a prompt sentence-transformers gives another vector"
        )
    return words


def _text(folder: Path, config: Mapping[str, Any]) -> TextRecipe:
    # sentence-transformers puts a normaliser before a tokenizer that has none for it.
    if read_json(folder / "sentence_bert_config.json").get("do_lower_case") and not _lowers(folder):
        raise InvalidModelError(
            f"{folder}: its texts are to be in lower case (do_lower_case), and {TOKENIZER_FILE} "
            "does not lower them: save it with that normaliser: from tokenizers import Tokenizer, "
            f"normalizers as n; t = Tokenizer.from_file('{TOKENIZER_FILE}'); own = [t.normalizer] "
            "if t.normalizer else []; t.normalizer = n.Sequence([n.Lowercase(), *own]); "
            f"t.save('{TOKENIZER_FILE}')"
        )
    _check_case(folder)
    pooling, normalize = _pooling(folder)
    # text-embeddings-inference takes all of one label for rerankers.
    is_reranker = len(_labels(config)) == 1 and not _is_regressor(config)
    return TextRecipe(
        tokenizer=TOKENIZER_FILE,
        pooling=pooling,
        normalize=normalize,
        pairs=("sentence_transformers" in config or is_reranker) and _is_classifier(config),
        max_tokens=max_tokens(folder, config),
    )


def _is_classifier(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or [""]
    return str(names[0]).endswith("Classification")


def _is_regressor(config: Mapping[str, Any]) -> bool:
    """Whether transformers trained it, for one number of a text; rerankers come from elsewhere."""
    is_of_pairs = "sentence_transformers" in config
    return config.get("problem_type") == "regression" and not is_of_pairs and _is_classifier(config)


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    by_index = config.get("id2label") or _UNNAMED
    if not _is_classifier(config) or not all(str(index).isdecimal() for index in by_index):
        return ()
    return tuple(str(by_index[index]) for index in sorted(by_index, key=int))


def _check_case(folder: Path) -> None:
    """Raise InvalidModelError where transformers' classes for BERT change what the file does."""
    config = read_json(folder / "tokenizer_config.json")
    own = read_json(folder / TOKENIZER_FILE).get("normalizer") or {}
    wanted = config.get("do_lower_case", own.get("lowercase"))
    is_followed = config.get("tokenizer_class") not in _PLAIN_TOKENIZERS
    if is_followed and own.get("type") == "BertNormalizer" and own["lowercase"] is not wanted:
        raise InvalidModelError(
            f"{folder}: do_lower_case is {wanted} in tokenizer_config.json, which transformers "
            f"follows, and lowercase is {own['lowercase']} in {TOKENIZER_FILE}: have transformers "
            f"write it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )


def _lowers(folder: Path) -> bool:
    """Whether the tokenizer lowers texts."""

    def lowers(normalizer: Mapping[str, Any]) -> bool:
        inner = map(lowers, normalizer.get("normalizers", ()))
        return (
            normalizer.get("type") == "Lowercase" or bool(normalizer.get("lowercase")) or any(inner)
        )

    return lowers(read_json(folder / TOKENIZER_FILE).get("normalizer") or {})


def max_tokens(folder: Path, config: Mapping[str, Any]) -> int | None:
    """The first that is a bound: of sentence-transformers, of the tokenizer, of the model."""
    found = (
        read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
        read_json(folder / "tokenizer_config.json").get("model_max_length"),
        config.get("max_position_embeddings"),
    )
    numbers = (n for n in found if isinstance(n, int | float) and not isinstance(n, bool))
    return next((int(each) for each in numbers if 1 <= each < _NO_BOUND), None)


def _pooling(folder: Path) -> tuple[Pooling | None, bool]:
    """What follows the encoder, as `modules.json` says."""
    modules = read_json(folder / "modules.json", [])
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise _otherwise(folder, f"modules.json has {unknown[0]}, which is not supported")
    if "Pooling" not in kinds:
        return None, False
    order = ("Transformer", "Pooling", "Normalize")
    if tuple(kinds) != order[: len(kinds)]:
        raise _otherwise(
            folder, f"modules.json has {', '.join(kinds)}; wanted are {', '.join(order)}, each once"
        )
    path = str(modules[kinds.index("Pooling")].get("path"))
    config = read_json(folder / path / "config.json")
    modes = [name for name, is_on in config.items() if is_on is True and "pooling_mode" in name]
    found = [_POOLINGS.get(name) for name in modes]
    if word := config.get("pooling_mode"):
        found = [_POOLING_WORDS.get(str(word))]
    if len(found) != 1 or found[0] is None:
        given = ", ".join(modes) or word or "none"
        raise _otherwise(
            folder, f"{path}/config.json has pooling {given}; known is one of {', '.join(Pooling)}"
        )
    return found[0], "Normalize" in kinds


def _otherwise(folder: Path, what: str) -> InvalidModelError:
    return InvalidModelError(
        f"{folder}: {what}: export it as part of the ONNX file, and add that: smelt models add "
        f"NAME FILE.onnx --tokenizer {folder / TOKENIZER_FILE}"
    )


def read_json(path: Path, default: Any = None) -> Any:
    """A file's content; the default, by default no fields, where there is none.

    Raises:
        InvalidModelError: it is broken, or its content of another type than the default.
    """
    wanted = {} if default is None else default
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return wanted
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModelError(f"{path} cannot be read: {error}; download it again") from error
    if type(found) is not type(wanted):
        raise InvalidModelError(
            f"{path} cannot be read: expected {type(wanted).__name__}, got {type(found).__name__}; "
            "download it again"
        )
    return found
