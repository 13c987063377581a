"""What an image consists of, as CycloneDX writes it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from rl_release.packages import Package

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "rltrain.dev")


def bill(image: str, digest: str, packages: Iterable[Package], codename: str, epoch: int) -> str:
    """The bill of materials of `image` (NAME:VERSION), whose manifest is `digest`: equal for equal images."""
    name, _, version = image.rpartition(":")
    subject = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=version,
        bom_ref=f"image:{digest}",
        hashes=[_hash(digest)],
    )
    components = [_component(package, codename) for package in packages]
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, digest),
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(epoch, UTC)),
        components=components,
    )
    bom.register_dependency(subject, components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of materials is not CycloneDX 1.6: {wrong.data.message}")
    return text + "\n"


def _component(package: Package, codename: str) -> Component:
    qualifiers = {"arch": package.arch, "distro": codename} if package.kind == "deb" else {}
    url = PackageURL(
        type=package.kind,
        namespace="debian" if package.kind == "deb" else None,
        name=package.name,
        version=package.version,
        qualifiers={key: value for key, value in qualifiers.items() if value},
    )
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"pkg:pypi/{package.name}@{package.version}"),
        comment="one of these files was installed",
        hashes=map(_hash, package.hashes),
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        purl=url,
        bom_ref=str(url),
        external_references=[files] if package.hashes else [],
    )


def _hash(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))
