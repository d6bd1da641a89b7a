"""Every generated file of the documentation, by its path below the repository's root."""

from services.cli.recipes.recipe_schema import recipe_schema
from tests.reference.commands import commands_page
from tests.reference.errors import errors_page
from tests.reference.loop import loop_picture
from tests.reference.metrics import alerts_page, metrics_page
from tests.reference.recipe import SCHEMA, recipe_page
from tests.reference.rpcs import rpcs_page
from tests.reference.settings import settings_page

FOLDER = "docs/reference"


def reference_pages() -> dict[str, str]:
    """Text by path."""
    pages = {
        "commands.md": commands_page(),
        "recipe.md": recipe_page(),
        SCHEMA: recipe_schema(),
        "settings.md": settings_page(),
        "rpcs.md": rpcs_page(),
        "metrics.md": metrics_page(),
        "alerts.md": alerts_page(),
        "errors.md": errors_page(),
    }
    pages = {f"{FOLDER}/{name}": text for name, text in pages.items()}
    return pages | {"docs/loop.svg": loop_picture()}
