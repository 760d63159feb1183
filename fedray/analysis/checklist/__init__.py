"""Answers to a conference's checklist, from the store (`fedray report NAME --checklist neurips|acl`)."""
