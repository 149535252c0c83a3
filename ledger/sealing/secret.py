"""A text that is not shown."""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Any, NoReturn, final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MASK = "***"


@final
class Secret:
    """An API key, a token, a header's value. `reveal` is the only way to it: str, repr, format,
    structlog and a pydantic model's JSON show `***`; other encoders and pickle refuse it.

    A pydantic model around it wants `hide_input_in_errors`, or its errors show what was given.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return MASK

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return compare_digest(_bytes(self._text), _bytes(other._text))

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema as schemas

        of_text = schemas.no_info_after_validator_function(cls, schemas.str_schema())
        return schemas.json_or_python_schema(
            json_schema=of_text,
            python_schema=schemas.union_schema([schemas.is_instance_schema(cls), of_text]),
            serialization=schemas.plain_serializer_function_ser_schema(str),
        )


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
