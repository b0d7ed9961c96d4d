"""Who asks, and what that identity may do: identities, tokens, rights."""
