"""What a conference's checklist asks, answered from the store (`fedray report NAME --checklist neurips|acl`)."""
