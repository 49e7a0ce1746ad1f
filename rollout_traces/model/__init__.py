"""Plain data that every room knows: what a trainer hands over, what was decoded, how it is packed and checked."""
