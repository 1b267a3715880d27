"""Values that something between a shell, SLURM, pyxis and Python would bend, if it were asked to interpret them."""

VALUES = {
    "COMMAS": "--a=FUSION,CUBLAS,CUDNN",
    "SPACES": "  two  words ",
    "SINGLE": "--b='FUSION'",
    "DOUBLE": 'say "no"',
    "DOLLAR": "$HOME ${PATH} $(id) `id`",
    "HASH": "a #b",
    "BACKSLASH": r"\n\\",
    "EQUALS": "=a=b",
    "NEWLINE": "one\ntwo\n",
    "EMPTY": "",
    "UNICODE": "caf\u00e9 \u4e2d",
    "BRACES": "{a: [1, 2]} %s !x ~ *",
}
