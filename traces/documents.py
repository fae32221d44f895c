"""Base classes of the JSON documents that commands print and save."""

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from traces.errors import UnusableFileError
from traces.files import read_document, write_json


class Data(BaseModel):
    """Part of a document. Its numbers are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Document(Data):
    """A JSON object with a "schema" that can be saved to a file and loaded from one."""

    schema_name: ClassVar[str]
    kind: ClassVar[str]

    def document(self) -> dict[str, Any]:
        """The JSON object that `--json` prints."""
        return {"schema": self.schema_name, **self.model_dump(mode="json")}

    def save(self, path: Path | str) -> Path:
        """Write as JSON, compressed with gzip if the name ends in .gz."""
        return write_json(path, self.document(), indent=1)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file written by `save`. Raises UnusableFileError for any other file."""
        document = read_document(path, cls.kind, cls.schema_name)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UnusableFileError(f"{cls.kind} {path} is damaged at {where}: {first['msg']}; make it again") from error
