"""Config structs: the compile-time parameters of a C++ template by name, generated as one line for each tile.

    template_of("Matmul", {"BM": 16, "BN": 64, "SWAP_AB": True, "BIAS": False, "EPS": 0.0})
    type    Matmul_BM16_BN64_SWAP_AB
    text    struct Matmul_BM16_BN64_SWAP_AB_Config { static constexpr int BM = 16; ... };
            typedef Matmul<Matmul_BM16_BN64_SWAP_AB_Config> Matmul_BM16_BN64_SWAP_AB;

Equal parameters give equal names, so ops of equal tiles share their code.
"""

from __future__ import annotations

from ctypes import c_float

#: By the names of members: bool, int (32 bits) or float (rounded to float32).
Parameters = dict[str, int | float]

_OF_FLOAT = str.maketrans({".": "p", "-": "m", "+": None})


def template_of(name: str, parameters: Parameters) -> tuple[str, str]:
    """Return the name of a class template with these parameters, and the text that defines it.

    Args:
        name: of the template, whose only parameter is the config.
        parameters: all members of the config.
    """
    type_ = "_".join((name, *(_label(key, value) for key, value in parameters.items() if value)))
    members = " ".join(f"static constexpr {_member(key, value)};" for key, value in parameters.items())
    return type_, f"struct {type_}_Config {{ {members} }}; typedef {name}<{type_}_Config> {type_};\n"


def _label(key: str, value: int | float) -> str:
    """Return a parameter's part of the name; those that are zero have none."""
    if isinstance(value, bool):
        return key
    return f"{key}{f'{c_float(value).value:.9g}'.translate(_OF_FLOAT) if isinstance(value, float) else value}"


def _member(key: str, value: int | float) -> str:
    if isinstance(value, bool):
        return f"bool {key} = {str(value).lower()}"
    return f"float {key} = {c_float(value).value!r}f" if isinstance(value, float) else f"int {key} = {value}"
