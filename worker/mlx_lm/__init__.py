"""Everything that relies on mlx-lm beyond its promises: private names, call orders, source text."""
