"""What engines say of themselves when asked: limits, pools, versions, and which blocks their prefix cache holds."""
