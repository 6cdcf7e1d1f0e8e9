"""All that is known of mlx-lm beyond what it promises: private names, call orders, source text."""
