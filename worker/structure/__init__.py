"""What an answer may be: grammars that mask the choice of each token, and budgets of reasoning.

Grammars are compiled beside the engine.
"""
