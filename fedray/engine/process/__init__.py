"""One process and its clients: it trains and tests them, and reduces their results before it replies."""
