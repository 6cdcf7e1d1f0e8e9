"""Constraints of answers: grammars, compiled beside the engine, that mask each token's choice."""
