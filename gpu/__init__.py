"""Brings Transformer Engine, NCCL, cuBLAS, MaxText and what the launcher needs to a GPU machine that has no network.

`build` prepares, on a machine with a package index, parts below a size limit; `setup` unpacks them on the GPU machine; `probe`
says there whether they work; `check` tries all of it on a CPU. docs/gpu.md is the reader's page, versions.toml the versions.
"""
