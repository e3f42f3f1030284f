"""What the fields of kinds are: their types, how their lists merge, their numbers in protobuf."""
