"""How a bundle gets to where it runs: one module a target, all meeting the contract in base.py."""
