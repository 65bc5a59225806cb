"""The ways programs talk to models; each module here turns one of them into requests and responses, and back."""
