"""All checks of a rendered set of objects; each returns what it finds wrong, in words."""

from collections.abc import Callable

from tests.integration.k8s.configuration import check_addresses, check_graces, check_settings
from tests.integration.k8s.network import check_network
from tests.integration.k8s.objects import Objects
from tests.integration.k8s.ray_rules import (
    check_applications,
    check_generations,
    check_ray_ports,
    check_ray_service,
)
from tests.integration.k8s.safety import (
    check_images,
    check_privileges,
    check_resources,
    check_tokens,
)
from tests.integration.k8s.schemas import check_custom_resources, check_kubernetes_kinds
from tests.integration.k8s.wiring import (
    check_ports,
    check_references,
    check_rights,
    check_routes,
    check_selectors,
)

Check = Callable[[Objects], list[str]]
CHECKS: tuple[Check, ...] = (
    check_kubernetes_kinds,
    check_custom_resources,
    check_ray_service,
    check_ray_ports,
    check_generations,
    check_applications,
    check_settings,
    check_addresses,
    check_graces,
    check_selectors,
    check_ports,
    check_routes,
    check_references,
    check_rights,
    check_network,
    check_privileges,
    check_resources,
    check_tokens,
    check_images,
)
