"""Beginnings of texts that drafts were not tuned on: they were written first, and set aside.

How likely a guess is, and where one is looked for, was chosen by other texts (bench/README.md). So these show
what drafts are worth to somebody else.
"""

from __future__ import annotations

__all__ = ["UNSEEN"]

UNSEEN = {
    "codes": (
        'class Stack:\n    """A stack of numbers."""\n\n    def __init__(self):\n        self.items = []\n',
        "#include <stdio.h>\n\nint count_words(const char *text) {\n    int count = 0;\n",
        "<!DOCTYPE html>\n<html>\n<head>\n  <title>My garden</title>\n</head>\n<body>\n",
        'package main\n\nimport "fmt"\n\nfunc fibonacci(n int) int {\n',
        "#!/bin/sh\n# Makes a backup of each directory that is named.\nset -e\n",
        "public class Account {\n    private double balance;\n\n    public Account(double balance) {\n",
        'from flask import Flask, request, jsonify\n\napp = Flask(__name__)\n\n\n@app.route("/users")\n',
        "struct Point {\n    x: f64,\n    y: f64,\n}\n\nimpl Point {\n",
    ),
    "lists": (
        "Countries and their capitals:\n- France: Paris\n- Germany: Berlin\n- Italy:",
        "| Element | Symbol | Number |\n|---|---|---|\n| Hydrogen | H | 1 |\n| Helium | He | 2 |\n",
        '[\n  {"title": "Dune", "author": "Frank Herbert", "year": 1965},\n  {"title": "Emma", "author":',
        "Animals and the sounds that they make:\nA dog barks.\nA cat meows.\nA cow",
        "server:\n  host: localhost\n  port: 8080\nservices:\n  - name: web\n    replicas: 3\n  - name:",
        "Recipe for pancakes\n\nIngredients:\n- 200 g flour\n- 2 eggs\n- 300 ml milk\n\nSteps:\n1.",
    ),
    "stories": (
        "There was once a girl who could talk to the rain. Her grandmother told her",
        "The dragon was small, hardly larger than a cat, and it lived in the kitchen stove.",
        "Every evening the baker left one loaf of bread on the window sill, and every morning",
        "The robot woke up in a field of sunflowers and did not remember",
    ),
    "prose": (
        "Photosynthesis is the process by which plants",
        "A good teacher is someone who",
        "The Amazon rainforest is the largest tropical forest in the world. It",
        "Music and mathematics have a lot in common. For example,",
    ),
}
"""By kind; answered greedily, and to the end that the model gives them."""
