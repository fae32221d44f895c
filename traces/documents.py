"""What every JSON document that a command prints or keeps has in common."""

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from traces.errors import UnusableFileError
from traces.files import read_document, write_json


class Data(BaseModel):
    """Part of a document. Numbers are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Document(Data):
    """A JSON object with a "schema" that is saved and loaded as a file."""

    schema_name: ClassVar[str]
    kind: ClassVar[str]

    def document(self) -> dict[str, Any]:
        """The JSON object, as `--json` prints it."""
        return {"schema": self.schema_name, **self.model_dump(mode="json")}

    def save(self, path: Path | str) -> Path:
        """Write as JSON (gzip when the name ends in .gz)."""
        return write_json(path, self.document(), indent=1)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file written by `save`. Raises UnusableFileError for anything else."""
        document = read_document(path, cls.kind, cls.schema_name)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UnusableFileError(f"{cls.kind} {path} is damaged at {where}: {first['msg']}; make it again") from error
