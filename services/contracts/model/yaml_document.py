"""A document that people write in YAML: read with file, line and wish for each fault."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from services.contracts.errors import SmeltError
from services.contracts.model.recipe_faults import faults_in
from services.contracts.model.yaml_text import YamlFault, line_of, value_from_yaml

Model = TypeVar("Model", bound=BaseModel)


def document_from_yaml(
    document: type[Model],
    text: str,
    source: str,
    error_type: type[SmeltError],
    *,
    if_empty: str = "",
) -> Model:
    """Read a document; `source` names its file in errors, which then have line numbers.

    Args:
        document: what the text has to be.
        text: YAML.
        source: its file; "" for none.
        error_type: that is raised, with a line for each fault: key, value and expectation.
        if_empty: what else the author of an empty text may do.

    Raises:
        SmeltError: of `error_type`.
    """
    where = source or document.__name__.lower()
    try:
        found = value_from_yaml(text)
        if found is None:
            raise error_type(f"{where}: it is empty; {if_empty}give some of {_keys(document)}")
        return document.model_validate(found)
    except YamlFault as fault:
        place = f"{source}:{fault.line}: {fault.words}" if source and fault.line else ""
        raise error_type(place or f"{where}: {fault}") from fault
    except ValidationError as error:
        faults = faults_in(error, document)
        if not source:
            words = [f"{where}: {fault.words}" for fault in faults]
        else:
            lines = sorted((line_of(text, fault.path), fault.words) for fault in faults)
            words = [f"{where}:{line}: {fault}" for line, fault in lines]
        raise error_type("\n".join(words)) from error


def _keys(document: type[BaseModel]) -> str:
    return ", ".join(sorted(document.model_fields))
